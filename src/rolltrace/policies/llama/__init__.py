"""llama.cpp in a process of its own: the weights, the server, and its shared use."""
