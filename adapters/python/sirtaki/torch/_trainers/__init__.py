"""Parts of the doors for trainers of other libraries."""
