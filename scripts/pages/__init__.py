"""What makes the documentation site of docs/ and of files beside it; `scripts/site` builds it."""
