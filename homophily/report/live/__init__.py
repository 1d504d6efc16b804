"""The live page of a folder, its metrics in the format of Prometheus, and its health."""
