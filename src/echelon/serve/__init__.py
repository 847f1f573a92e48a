"""A model over HTTP, with a page to try it. Needs the extra `serve`, and torch only if the model does."""
