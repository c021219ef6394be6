"""Start-up of a job: this process's rank and job (`environment`), and the launcher of local ranks (`launcher`)."""
