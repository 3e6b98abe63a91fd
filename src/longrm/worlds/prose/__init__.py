"""Worlds in plain prose: facts among the paragraphs of a kind of text, or among those of the user's own documents."""
