"""Public data whose clients differ by nature: by domain, by how and of whom an image was taken, by hospital."""
