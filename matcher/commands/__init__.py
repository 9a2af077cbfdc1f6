"""The commands of `matcher`, a file a group; `matcher.cli` puts them together."""
