"""The exit layer for a task: the earliest layer of an encoder whose embeddings predict labels about as well as all."""
