"""horovod.runner.elastic.driver: defaults that tests replace, which a job reads when it starts."""

#: Time between two runs of the script that names the hosts.
DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
#: Time that ranks wait for others, unless --elastic-timeout or HOROVOD_ELASTIC_TIMEOUT says otherwise.
ELASTIC_TIMEOUT_SECS = 600
