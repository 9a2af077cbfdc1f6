"""Training pairs with verified matches from anybody's photographs."""
