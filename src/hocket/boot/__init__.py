"""Start-up of a job: who am I and who are the others (`environment`), and the launcher of local ranks (`launcher`)."""
