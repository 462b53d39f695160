"""The pictures of the documents, drawn from runs on scikit-learn's digits: `python -m docs.pictures`."""
