"""What a step costs on a target."""
