"""How compiled code is made, kept and run: leaves and their calls, the cache, compiling ahead, the driver, what the process may use."""
