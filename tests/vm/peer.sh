#!/bin/sh
name=${0##*/}
exec /peers/ld.so --argv0 "$name" --library-path /peers/lib "/peers/$name" "$@"
