"""Train the networks: settings, samples, tokens, labels, objectives, and one loop for all."""
