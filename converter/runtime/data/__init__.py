"""Rows on their way into a program: checks, order, lengths, texts, and metrics of what comes out."""
