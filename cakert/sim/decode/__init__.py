"""From instructions as text says them to operations that a warp runs."""
