"""From judgments to what they mean."""
