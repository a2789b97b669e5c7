"""Parts of the benchmark `churn`: schedules of faults, jobs that bear them, files of the ranks, and figures."""
