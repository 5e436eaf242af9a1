"""The mean-field equation on the sphere in d = 3: a triangulation that moves with the flow."""
