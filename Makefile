# `make TARGET NAME=value` is `./dev TARGET NAME=value`: everything lives there.
.PHONY: help setup run test bench fuzz load
.DEFAULT_GOAL := help
help setup run test bench fuzz load:
	@./dev $@ $(MAKEOVERRIDES)
