"""Data of the examples: of packages, of synthetic voices, or made of seeded noise."""
