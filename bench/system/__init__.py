"""The machine, its processes, Ray and the terminal. Imports nothing else of the benchmark."""
