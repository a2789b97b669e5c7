"""Parts of benchmarks.netns: shaped networks in namespaces, their checks and their command line."""
