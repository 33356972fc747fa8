"""The compiled heart of the simulator: register files, memories, and the run loop of a warp."""
