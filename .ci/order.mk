# Which of the Makefile's targets run at the same time in .ci/run, two at most. The main suite takes
# longest and starts as soon as its environment is there. Beside it run the others, one after the
# other; Horovod's first, because it is built without the main environment.
.PHONY: all main-environment main horovod others

all: main others

main-environment:
	@$(MAKE) .venv/.dev

main: main-environment
	@$(MAKE) test-main

horovod:
	@$(MAKE) test-horovod

others: horovod main-environment
	@$(MAKE) test-tensorflow test-ray test-ui dist check
