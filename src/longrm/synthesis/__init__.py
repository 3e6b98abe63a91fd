"""Makes data: candidates, training rows and benchmarks from a user's own documents and questions."""
