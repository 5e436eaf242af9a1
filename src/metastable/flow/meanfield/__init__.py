"""The mean-field equation, solved on cells that move with the flow."""
