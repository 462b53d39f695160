"""The method: bounds, projector, moments, descriptor, trigger, clustering, assignment. Arrays in, arrays out."""
