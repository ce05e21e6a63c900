"""Runs llama.cpp in a separate server process, which policies with equal settings share."""
