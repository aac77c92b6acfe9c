"""Does the server still say what the model says: `scripts/evaluate.py` puts the parts together."""
