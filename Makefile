# `make TARGET NAME=value` is `./dev TARGET NAME=value`: everything lives there.
TARGETS = help setup run stream-demo pipeline test bench sim fuzz torture model compat load docs format structure mutants pictures man deb image uplot wheels sbom audit pins
.PHONY: $(TARGETS)
.DEFAULT_GOAL := help
$(TARGETS):
	@./dev $@ $(MAKEOVERRIDES)
