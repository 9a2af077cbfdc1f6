"""What networks share: attention, positions, assignment, backbones, and the networks themselves."""
