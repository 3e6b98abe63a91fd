"""A server that scores responses: one model, one queue, and the formats in which trainers ask."""
