/*
 * Calls that wait, and what may come meanwhile: `blocking ADDRESS PORT`. Each case is tried and must come out as on Linux;
 * `blocking ADDRESS PORT files|locked` tries a connection under a
 * limit. Prints "same" at the end, or what differed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* rpc/types.h, which not every system has. */
int bindresvport(int, struct sockaddr_in *);

static struct sockaddr_in place;
static int listener;
static const char *now = "?";

#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("%s: line %d: %s (%s)\n", now, __LINE__, #what, strerror(errno));                       \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Both ends of a connection. */
static void join(int ends[2])
{
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(ends[0], (struct sockaddr *)&place, sizeof place) == 0);
	ends[1] = accept(listener, NULL, NULL);
	MUST(ends[1] >= 0);
}

static void part(int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

/* Until the thread of that number sleeps in the kernel: nothing else tells that a call waits. */
static void until_asleep(pid_t thread)
{
	for (int quiet = 0; quiet < 20;) {
		char path[64], text[512] = "";
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
		int file = open(path, O_RDONLY);
		ssize_t n = read(file, text, sizeof text - 1);
		close(file);
		char *state = n > 0 ? strrchr(text, ')') : NULL;
		quiet = state && state[2] == 'S' ? quiet + 1 : 0;
		usleep(200);
	}
}

struct call {
	int fd;
	int kind;
	_Atomic pid_t thread;
	ssize_t result;
	int error;
	int cleaned;
};

enum { READ, WRITE, RECVMSG, ACCEPT, POLL, SELECT, EPOLL, KINDS };

static char big[1 << 20];

static void clean(void *of)
{
	((struct call *)of)->cleaned = 1;
}

static void *make(void *of)
{
	struct call *call = of;
	struct pollfd polled = {call->fd, POLLIN, 0};
	struct iovec one = {big, 1};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
	struct epoll_event event = {.events = EPOLLIN};
	fd_set set;
	FD_ZERO(&set);
	FD_SET(call->fd, &set);
	int epoll = -1;
	if (call->kind == EPOLL) {
		epoll = epoll_create1(0);
		MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, call->fd, &event) == 0);
	}
	call->thread = gettid();
	pthread_cleanup_push(clean, call);
	switch (call->kind) {
	case READ:
		call->result = read(call->fd, big, 100);
		break;
	case WRITE:
		while ((call->result = send(call->fd, big, sizeof big, MSG_NOSIGNAL)) > 0)
			;
		break;
	case RECVMSG:
		call->result = recvmsg(call->fd, &message, 0);
		break;
	case ACCEPT:
		call->result = accept(call->fd, NULL, NULL);
		break;
	case POLL:
		call->result = poll(&polled, 1, -1);
		break;
	case SELECT:
		call->result = select(call->fd + 1, &set, NULL, NULL, NULL);
		break;
	case EPOLL:
		call->result = epoll_wait(epoll, &event, 1, -1);
		break;
	}
	call->error = errno;
	pthread_cleanup_pop(0);
	close(epoll);
	return NULL;
}

static pthread_t begin(struct call *call, int fd, int kind)
{
	pthread_t thread;
	*call = (struct call){.fd = fd, .kind = kind};
	MUST(pthread_create(&thread, NULL, make, call) == 0);
	while (!call->thread)
		usleep(100);
	until_asleep(call->thread);
	return thread;
}

static void cancelled(void)
{
	for (int kind = 0; kind < KINDS; kind++) {
		int ends[2];
		struct call call;
		void *left;
		join(ends);
		pthread_t thread = begin(&call, kind == ACCEPT ? listener : ends[0], kind);
		MUST(pthread_cancel(thread) == 0);
		MUST(pthread_join(thread, &left) == 0);
		MUST(left == PTHREAD_CANCELED && call.cleaned);
		/* What it waited for can be waited for by others. */
		if (kind == READ) {
			thread = begin(&call, ends[0], READ);
			MUST(write(ends[1], "x", 1) == 1);
			pthread_join(thread, NULL);
			MUST(call.result == 1);
		}
		part(ends);
	}
}

static void *never(void *of)
{
	struct call *call = of;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	make(call);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	char octet;
	(void)!read(call->fd, &octet, 1);
	call->cleaned = 7;
	return NULL;
}

static void not_cancelled_while_it_does_not_let_itself(void)
{
	int ends[2];
	struct call call;
	void *left;
	pthread_t thread;
	join(ends);
	call = (struct call){.fd = ends[0], .kind = READ};
	MUST(pthread_create(&thread, NULL, never, &call) == 0);
	while (!call.thread)
		usleep(100);
	until_asleep(call.thread);
	MUST(pthread_cancel(thread) == 0);
	until_asleep(call.thread);
	MUST(write(ends[1], "xyz", 3) == 3);
	MUST(pthread_join(thread, &left) == 0);
	MUST(call.result == 3 && left == PTHREAD_CANCELED && call.cleaned != 7);
	part(ends);
}

static void shut_while_another_waits(void)
{
	int ends[2];
	struct call call;
	join(ends);
	pthread_t thread = begin(&call, ends[0], READ);
	MUST(shutdown(ends[0], SHUT_RD) == 0);
	pthread_join(thread, NULL);
	MUST(call.result == 0);
	part(ends);
	join(ends);
	thread = begin(&call, ends[0], WRITE);
	MUST(shutdown(ends[0], SHUT_WR) == 0);
	pthread_join(thread, NULL);
	MUST(call.result == -1 && call.error == EPIPE);
	part(ends);
}

static void closed_while_another_waits(void)
{
	int ends[2];
	struct call call;
	join(ends);
	pthread_t thread = begin(&call, ends[0], READ);
	MUST(close(ends[0]) == 0);
	/* The one that waits has it still. */
	MUST(write(ends[1], "still", 5) == 5);
	pthread_join(thread, NULL);
	MUST(call.result == 5 && memcmp(big, "still", 5) == 0);
	char octet;
	MUST(read(ends[1], &octet, 1) == 0);
	close(ends[1]);
}

static void a_listener_closed_while_another_accepts(void)
{
	struct sockaddr_in own = place;
	socklen_t len = sizeof own;
	own.sin_port = 0;
	int other = socket(AF_INET, SOCK_STREAM, 0);
	MUST(bind(other, (struct sockaddr *)&own, sizeof own) == 0 && listen(other, 5) == 0);
	MUST(getsockname(other, (struct sockaddr *)&own, &len) == 0);
	struct call call;
	pthread_t thread = begin(&call, other, ACCEPT);
	MUST(close(other) == 0);
	int end = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(end, (struct sockaddr *)&own, sizeof own) == 0);
	pthread_join(thread, NULL);
	MUST(call.result >= 0);
	MUST(write(end, "through", 7) == 7 && read(call.result, big, 100) == 7);
	close(end);
	close(call.result);
}

static sem_t handled;

static void on_signal(int number)
{
	(void)number;
	sem_post(&handled);
}

static void *spliced(void *of)
{
	int *fds = of;
	fds[3] = gettid();
	fds[2] = (int)splice(fds[0], NULL, fds[1], NULL, 100, 0);
	return NULL;
}

static void a_handler_in_splice(void)
{
	int ends[2], pipes[2];
	join(ends);
	MUST(pipe(pipes) == 0);
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	sem_init(&handled, 0, 0);
	int fds[4] = {pipes[0], ends[0], 0, 0};
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, spliced, fds) == 0);
	while (!((volatile int *)fds)[3])
		usleep(100);
	until_asleep(fds[3]);
	pthread_kill(thread, SIGUSR1);
	sem_wait(&handled);
	MUST(write(pipes[1], "through", 7) == 7);
	pthread_join(thread, NULL);
	char room[8];
	MUST(fds[2] == 7 && recv(ends[1], room, 7, MSG_WAITALL) == 7 && memcmp(room, "through", 7) == 0);
	part(ends);
	part(pipes);
}

static void thrown_away(void)
{
	int ends[2];
	char room[8];
	join(ends);
	MUST(write(ends[0], "0123456789", 10) == 10);
	MUST(recv(ends[1], NULL, 6, MSG_TRUNC | MSG_WAITALL) == 6);
	MUST(recv(ends[1], room, 8, 0) == 4 && memcmp(room, "6789", 4) == 0);
	MUST(recv(ends[1], NULL, 6, MSG_TRUNC | MSG_DONTWAIT) == -1 && errno == EAGAIN);
	part(ends);
}

static void bound_by_the_c_library(void)
{
	struct sockaddr_in mine = {.sin_family = AF_INET}, seen;
	socklen_t len = sizeof seen;
	if (geteuid() != 0)
		return;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	mine.sin_addr.s_addr = place.sin_addr.s_addr;
	MUST(bindresvport(fd, &mine) == 0);
	MUST(connect(fd, (struct sockaddr *)&place, sizeof place) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&seen, &len) == 0);
	MUST(ntohs(seen.sin_port) < 1024 && seen.sin_port != 0);
	int other = accept(listener, (struct sockaddr *)&seen, &len);
	MUST(other >= 0 && ntohs(seen.sin_port) < 1024);
	close(other);
	close(fd);
	/* The same by another process that has the descriptor. */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	pid_t pid = vfork();
	if (pid == 0) {
		struct sockaddr_in theirs = {.sin_family = AF_INET, .sin_port = htons(39123)};
		theirs.sin_addr.s_addr = place.sin_addr.s_addr;
		_exit(bind(fd, (struct sockaddr *)&theirs, sizeof theirs) != 0);
	}
	int status;
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
	MUST(connect(fd, (struct sockaddr *)&place, sizeof place) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&seen, &len) == 0 && seen.sin_port == htons(39123));
	close(accept(listener, NULL, NULL));
	close(fd);
}

static void one_connection(void)
{
	int ends[2];
	char octet;
	join(ends);
	MUST(write(ends[0], "x", 1) == 1 && read(ends[1], &octet, 1) == 1);
	part(ends);
}

static void *nothing(void *unused)
{
	return unused;
}

static void on_the_smallest_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	MUST(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	errno = pthread_create(&thread, &attributes, nothing, NULL);
	MUST(errno == 0);
	pthread_join(thread, NULL);
}

static long locked(const char *what)
{
	char text[4096];
	int file = open("/proc/self/status", O_RDONLY);
	ssize_t n = read(file, text, sizeof text - 1);
	close(file);
	text[n > 0 ? n : 0] = 0;
	char *at = strstr(text, what);
	return at ? atol(at + strlen(what)) : -1;
}

static void few_octets_in_files(void)
{
	struct rlimit limit = {16 << 10, 16 << 10};
	setrlimit(RLIMIT_FSIZE, &limit);
}

static double seconds(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The peer takes nothing more: what is left cannot be acknowledged. */
static void lingered(void)
{
	int ends[2];
	join(ends);
	struct linger linger = {1, 1};
	MUST(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	for (int idle = 0; idle < 20;) {
		if (send(ends[0], big, sizeof big, MSG_NOSIGNAL) < 0) {
			MUST(errno == EAGAIN);
			idle++;
			usleep(5000);
		}
	}
	double begun = seconds();
	MUST(close(ends[0]) == 0);
	MUST(seconds() - begun > 0.9);
	close(ends[1]);
	/* With nothing left it is over at once, however long the time. */
	join(ends);
	linger.l_linger = 30;
	MUST(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	MUST(write(ends[0], "all", 3) == 3);
	begun = seconds();
	MUST(close(ends[0]) == 0);
	MUST(seconds() - begun < 10);
	char room[8];
	MUST(recv(ends[1], room, 8, MSG_WAITALL) == 3);
	close(ends[1]);
}

int main(int count, char **words)
{
	const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
	    {"cancelled", cancelled},
	    {"not cancelled", not_cancelled_while_it_does_not_let_itself},
	    {"shut", shut_while_another_waits},
	    {"closed", closed_while_another_waits},
	    {"closed in accept", a_listener_closed_while_another_accepts},
	    {"splice", a_handler_in_splice},
	    {"thrown away", thrown_away},
	    {"bound", bound_by_the_c_library},
	    {"stack", on_the_smallest_stack},
	    {"lingered", lingered},
	};
	if (count < 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	place.sin_family = AF_INET;
	place.sin_port = htons((uint16_t)atoi(words[2]));
	inet_pton(AF_INET, words[1], &place.sin_addr);
	const char *only = count > 3 ? words[3] : "";
	int is_limited = !strcmp(only, "files") || !strcmp(only, "locked");
	/* Before the first socket. */
	if (!strcmp(only, "files"))
		few_octets_in_files();
	if (!strcmp(only, "locked"))
		MUST(mlockall(MCL_FUTURE) == 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	int on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	MUST(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 100) == 0);
	if (is_limited) {
		one_connection();
		long kib = locked("VmLck:");
		if (kib > 100 << 10) {
			printf("%ld KiB are locked\n", kib);
			return 1;
		}
		printf("same\n");
		return 0;
	}
	for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
		if (*only && strcmp(only, cases[n].name) != 0)
			continue;
		now = cases[n].name;
		cases[n].run();
	}
	printf("same\n");
	return 0;
}
