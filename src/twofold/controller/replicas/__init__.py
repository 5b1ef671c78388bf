"""What the controller decides about replicas: leaders, the ISR, moves, directories."""
