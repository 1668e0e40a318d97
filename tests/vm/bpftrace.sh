#!/bin/sh
exec /peers/ld.so --argv0 bpftrace --library-path /peers/lib /peers/bpftrace "$@"
