"""What synthesis begins with: documents, and answers to their questions."""
