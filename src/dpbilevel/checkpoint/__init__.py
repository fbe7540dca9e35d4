"""A run that was interrupted and resumes: what is saved, in which file, and what makes it the same run."""
