"""DP-SGD on its own."""
