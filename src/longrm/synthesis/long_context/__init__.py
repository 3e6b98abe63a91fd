"""Long contexts: the evidence of a document, and the distractors that pad it to a length."""
