"""Files of models and code: fetch them from object storage or the web, unpack them within bounds, cache by content."""
