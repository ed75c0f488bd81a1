"""What runs beside the turns."""
