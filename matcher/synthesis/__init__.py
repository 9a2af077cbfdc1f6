"""Make image pairs with exact truth out of photographs, in batches, on any device."""
