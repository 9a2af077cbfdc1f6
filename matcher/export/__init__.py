"""Networks as graphs for other runtimes: `matcher.export.exporter` writes and checks them."""
