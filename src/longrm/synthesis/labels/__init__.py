"""Labels: what a judge, or most judges of a panel, say of a response."""
