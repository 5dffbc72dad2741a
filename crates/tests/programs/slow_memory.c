/*
 * A call's buffer is a page that has to be waited for, as a mapped file's on a slow disk (here one that userfaultfd(2) keeps back):
 * `slow_memory PORT`. As with Linux, only that call waits: other connections go on, and fork returns. Prints what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

enum { PAGE = 4096, PAGES = 5, LONG = PAGES * PAGE };

/* Memory whose pages stay away until they are let in. */
struct late {
	int fd;
	char *at;
};

static struct late late_memory(void)
{
	struct late late = {.fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC)};
	MUST(late.fd >= 0);
	struct uffdio_api api = {.api = UFFD_API};
	MUST(ioctl(late.fd, UFFDIO_API, &api) == 0);
	late.at = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(late.at != MAP_FAILED);
	struct uffdio_register all = {.range = {(uintptr_t)late.at, LONG}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	MUST(ioctl(late.fd, UFFDIO_REGISTER, &all) == 0);
	return late;
}

/* So many of them, all with this byte; whoever waits for them goes on. */
static void let_in(struct late *late, int from, int to, char byte)
{
	static char page[PAGE];
	memset(page, byte, sizeof page);
	for (int n = from; n < to; n++) {
		struct uffdio_copy one = {.dst = (uintptr_t)late->at + n * PAGE, .src = (uintptr_t)page, .len = PAGE};
		MUST(ioctl(late->fd, UFFDIO_COPY, &one) == 0);
	}
}

static void done_with(struct late *late)
{
	munmap(late->at, LONG);
	close(late->fd);
}

enum kind { SEND, WRITEV, RECV, READV, KINDS };
static const char *const names[] = {"send", "writev", "recv", "readv"};

struct call {
	pthread_t thread;
	_Atomic pid_t id;
	enum kind kind;
	int fd;
	char *at;
	ssize_t result;
};

static void *make(void *of)
{
	struct call *call = of;
	struct iovec parts[] = {{call->at, PAGE}, {call->at + PAGE, LONG - PAGE}};
	call->id = gettid();
	switch (call->kind) {
	case SEND:
		call->result = send(call->fd, call->at, LONG, 0);
		break;
	case WRITEV:
		call->result = writev(call->fd, parts, 2);
		break;
	case RECV:
		call->result = recv(call->fd, call->at, LONG, MSG_WAITALL);
		break;
	case READV:
		call->result = readv(call->fd, parts, 2);
		break;
	default:
		break;
	}
	return NULL;
}

static void begin(struct call *call)
{
	MUST(pthread_create(&call->thread, NULL, make, call) == 0);
	while (!call->id)
		sched_yield();
	until_asleep(call->id);
}

static ssize_t end(struct call *call)
{
	MUST(pthread_join(call->thread, NULL) == 0);
	return call->result;
}

/* Another connection goes on, a new one comes about, and fork returns in both. */
static void others_go_on(int ends[2])
{
	char byte;
	for (int n = 0; n < 100; n++) {
		MUST(send(ends[0], "?", 1, 0) == 1 && recv(ends[1], &byte, 1, 0) == 1);
		MUST(send(ends[1], "!", 1, 0) == 1 && recv(ends[0], &byte, 1, 0) == 1);
	}
	int more[2];
	join(more);
	MUST(send(more[0], "?", 1, 0) == 1 && recv(more[1], &byte, 1, 0) == 1);
	close(more[0]);
	close(more[1]);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0)
		_exit(7);
	int status;
	MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void received(int fd, size_t length, char byte)
{
	char *got = malloc(length);
	MUST(recv(fd, got, length, MSG_WAITALL) == (ssize_t)length);
	for (size_t n = 0; n < length; n++)
		MUST(got[n] == byte);
	free(got);
}

static void out_of_late_memory(enum kind kind, int other[2])
{
	int ends[2];
	join(ends);
	struct late late = late_memory();
	struct call call = {.kind = kind, .fd = ends[0], .at = late.at};
	begin(&call);
	others_go_on(other);
	let_in(&late, 0, 1, 'a');
	until_asleep(call.id);
	others_go_on(other);
	let_in(&late, 1, PAGES, 'a');
	MUST(end(&call) == LONG);
	received(ends[1], LONG, 'a');
	done_with(&late);
	close(ends[0]);
	close(ends[1]);
}

static void into_late_memory(enum kind kind, int other[2])
{
	int ends[2];
	join(ends);
	struct late late = late_memory();
	char bytes[LONG];
	memset(bytes, 'b', sizeof bytes);
	MUST(send(ends[1], bytes, sizeof bytes, 0) == sizeof bytes);
	struct call call = {.kind = kind, .fd = ends[0], .at = late.at};
	begin(&call);
	others_go_on(other);
	let_in(&late, 0, 2, 'x');
	until_asleep(call.id);
	others_go_on(other);
	let_in(&late, 2, PAGES, 'x');
	MUST(end(&call) == LONG);
	MUST(memcmp(late.at, bytes, LONG) == 0);
	done_with(&late);
	close(ends[0]);
	close(ends[1]);
}

static int datagrams(struct sockaddr_in *own)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t length = sizeof *own;
	*own = (struct sockaddr_in){AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
	MUST(bind(fd, (struct sockaddr *)own, length) == 0 && getsockname(fd, (struct sockaddr *)own, &length) == 0);
	return fd;
}

static void datagram_out_of_late_memory(int other[2])
{
	struct sockaddr_in from, to;
	int ends[2] = {datagrams(&from), datagrams(&to)};
	MUST(connect(ends[0], (struct sockaddr *)&to, sizeof to) == 0);
	char bytes[LONG];
	memset(bytes, 'd', sizeof bytes);
	/* What goes between two sockets for long may go another way then. */
	for (int n = 0; n < 300; n++)
		MUST(send(ends[0], bytes, 64, 0) == 64 && recv(ends[1], bytes, LONG, 0) == 64);
	struct late late = late_memory();
	struct call call = {.kind = SEND, .fd = ends[0], .at = late.at};
	begin(&call);
	others_go_on(other);
	let_in(&late, 0, PAGES, 'd');
	MUST(end(&call) == LONG);
	received(ends[1], LONG, 'd');
	done_with(&late);
	close(ends[0]);
	close(ends[1]);
}

/* A connection of the kernel's: sockets of one device are. */
static void join_in_kernel(int ends[2])
{
	struct sockaddr_in at = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
	socklen_t length = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	MUST(setsockopt(listener, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0);
	MUST(bind(listener, (struct sockaddr *)&at, length) == 0 && listen(listener, 1) == 0);
	MUST(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
	MUST((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(setsockopt(ends[0], SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0);
	MUST(connect(ends[0], (struct sockaddr *)&at, length) == 0);
	MUST((ends[1] = accept(listener, NULL, NULL)) >= 0);
	close(listener);
}

union control_data {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

static void pass_on(int over, int fd)
{
	union control_data control = {.header = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS}};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	struct iovec byte = {"f", 1};
	struct msghdr message = {NULL, 0, &byte, 1, &control, sizeof control, 0};
	MUST(sendmsg(over, &message, 0) == 1);
}

static int passed(int over)
{
	union control_data control;
	char got;
	struct iovec byte = {&got, 1};
	struct msghdr message = {NULL, 0, &byte, 1, &control, sizeof control, 0};
	int fd;
	MUST(recvmsg(over, &message, 0) == 1 && control.header.cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
	return fd;
}

/* The call holds the socket's lock in the kernel. Who gets the socket need not wait for that. */
static void handed_on_from_late_memory(void)
{
	int ends[2], between[2];
	join_in_kernel(ends);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, between) == 0);
	struct late late = late_memory();
	struct call call = {.kind = SEND, .fd = ends[0], .at = late.at};
	begin(&call);
	pass_on(between[0], ends[0]);
	int copy = passed(between[1]), type;
	socklen_t length = sizeof type;
	MUST(getsockopt(copy, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM);
	struct pollfd ready = {copy, POLLIN, 0};
	MUST(poll(&ready, 1, 0) == 0);
	close(copy);
	let_in(&late, 0, PAGES, 'k');
	MUST(end(&call) == LONG);
	received(ends[1], LONG, 'k');
	done_with(&late);
	close(ends[0]);
	close(ends[1]);
}

int main(int count, char **arguments)
{
	MUST(count == 2);
	/* Nothing here may hang. */
	alarm(40);
	setvbuf(stdout, NULL, _IOLBF, 0);
	listen_at_port(arguments[1]);
	int other[2];
	join(other);
	for (int kind = SEND; kind < KINDS; kind++) {
		now = names[kind];
		if (kind == SEND || kind == WRITEV)
			out_of_late_memory(kind, other);
		else
			into_late_memory(kind, other);
		printf("%s\n", now);
	}
	now = "datagram";
	datagram_out_of_late_memory(other);
	printf("%s\n", now);
	now = "handed on";
	handed_on_from_late_memory();
	printf("%s\nall\n", now);
	return 0;
}
