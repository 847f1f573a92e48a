"""A model over HTTP, and a page to try it on. Needs the extra `serve`; torch only where the model does."""
