/* A program that knows nothing of the switch layer. It echoes over loopback TCP in every way that programs wait and
 * copy descriptors, and checks what it gets. Built and run by plain_kernel.rs, with and without the layer: the result
 * must be the same. With the argument "no-cancel" it must also pass on an engine. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                              \
	do {                                                                                          \
		if (!(condition)) {                                                                   \
			fprintf(stderr, "line %d: %s: errno %d\n", __LINE__, #condition, errno);      \
			exit(1);                                                                      \
		}                                                                                     \
	} while (0)

static struct sockaddr_in server;

static int listener(int flags)
{
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(server);

	CHECK(fd >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0);
	CHECK(listen(fd, 16) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&server, &len) == 0 && len == sizeof(server));
	return fd;
}

static int client(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&server, sizeof(server)) == 0);
	return fd;
}

static void pair(int ends[2])
{
	int fd = listener(0);
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);

	ends[0] = client();
	ends[1] = accept4(fd, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0 && len == sizeof(peer) && peer.sin_family == AF_INET);
	CHECK(close(fd) == 0);
}

static void stream_calls(void)
{
	int ends[2], value = 0, on = 1;
	socklen_t len = sizeof(value);
	char text[16] = {0}, head[4] = {0};
	struct iovec out[3] = {{"he", 2}, {NULL, 0}, {"llo", 3}}, in[2] = {{head, 2}, {text, 10}};
	struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};

	pair(ends);
	CHECK(write(ends[0], "one", 3) == 3 && read(ends[1], text, 16) == 3 && !memcmp(text, "one", 3));
	CHECK(writev(ends[0], out, 3) == 5);
	CHECK(recv(ends[1], text, 16, MSG_PEEK) == 5);
	CHECK(ioctl(ends[1], FIONREAD, &value) == 0 && value == 5);
	CHECK(recvmsg(ends[1], &message, 0) == 5 && !memcmp(head, "he", 2) && !memcmp(text, "llo", 3));
	CHECK(recv(ends[1], text, 16, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	CHECK(getsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value != 0 && len == 4);
	CHECK(getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
	CHECK(connect(ends[0], (struct sockaddr *)&server, sizeof(server)) == -1 && errno == EISCONN);
	CHECK(shutdown(ends[0], SHUT_WR) == 0);
	CHECK(read(ends[1], text, 16) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	CHECK(close(ends[1]) == -1 && errno == EBADF);
}

static void waits(void)
{
	int ends[2], set = epoll_create1(EPOLL_CLOEXEC);
	char byte;
	fd_set reads;
	struct timeval now = {0, 0};
	struct pollfd one = {.events = POLLIN};
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 0x1122334455667788};

	pair(ends);
	CHECK(set >= 0);
	one.fd = ends[1];
	CHECK(poll(&one, 1, 0) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == -1 && errno == EEXIST);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	CHECK(write(ends[0], "x", 1) == 1);
	CHECK(poll(&one, 1, -1) == 1 && one.revents == POLLIN);
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	CHECK(select(ends[1] + 1, &reads, NULL, NULL, &now) == 1 && FD_ISSET(ends[1], &reads));
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 0x1122334455667788);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	CHECK(epoll_wait(set, &event, 0, 0) == -1 && errno == EINVAL);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &event) == -1 && errno == ENOENT);
	CHECK(read(ends[1], &byte, 1) == 1);
	CHECK(close(set) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void nonblocking(void)
{
	int fd, new, value = -1, listening = listener(SOCK_NONBLOCK), on = 1, set = epoll_create1(0);
	socklen_t len = sizeof(value);
	struct epoll_event event = {.events = EPOLLOUT};

	CHECK(accept(listening, NULL, NULL) == -1 && errno == EAGAIN);
	fd = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(ioctl(fd, FIONBIO, &on) == 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK));
	CHECK(connect(fd, (struct sockaddr *)&server, sizeof(server)) == 0 || errno == EINPROGRESS);
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && (event.events & EPOLLOUT));
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
	while ((new = accept(listening, NULL, NULL)) == -1)
		CHECK(errno == EAGAIN);
	CHECK(!(fcntl(new, F_GETFL) & O_NONBLOCK) && (fcntl(listening, F_GETFL) & O_NONBLOCK));
	CHECK(fcntl(listening, F_SETFD, FD_CLOEXEC) == 0 && fcntl(listening, F_GETFD) == FD_CLOEXEC);
	CHECK(close(fd) == 0 && close(new) == 0 && close(listening) == 0 && close(set) == 0);
	/* Nobody listens there now. */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, (struct sockaddr *)&server, sizeof(server)) == -1 && errno == ECONNREFUSED);
	CHECK(close(fd) == 0);
}

static void copies(void)
{
	int ends[2], copy, moved;
	char text[8];

	pair(ends);
	copy = dup(ends[0]);
	moved = fcntl(ends[0], F_DUPFD_CLOEXEC, 100);
	CHECK(copy >= 0 && moved >= 100);
	CHECK(close(ends[0]) == 0);
	CHECK(dup2(moved, copy) == copy && close(moved) == 0);
	CHECK(send(copy, "copied", 6, MSG_NOSIGNAL) == 6 && recv(ends[1], text, 8, 0) == 6);
	CHECK(close_range(copy, copy, 0) == 0);
	CHECK(fcntl(copy, F_GETFD) == -1 && errno == EBADF);
	CHECK(recv(ends[1], text, 8, 0) == 0 && close(ends[1]) == 0);
	/* A copy made before connect. */
	ends[0] = listener(0);
	copy = socket(AF_INET, SOCK_STREAM, 0);
	moved = dup(copy);
	CHECK(connect(copy, (struct sockaddr *)&server, sizeof(server)) == 0);
	ends[1] = accept(ends[0], NULL, NULL);
	CHECK(write(moved, "x", 1) == 1 && read(ends[1], text, 8) == 1);
	CHECK(close(copy) == 0 && close(moved) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void forks(void)
{
	int listening = listener(0), fd, status;
	char text[8];
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		int new = accept(listening, NULL, NULL);

		CHECK(new >= 0 && read(new, text, 8) == 4 && write(new, text, 4) == 4);
		closefrom(3);
		CHECK(fcntl(new, F_GETFD) == -1 && errno == EBADF);
		_exit(0);
	}
	fd = client();
	CHECK(write(fd, "fork", 4) == 4 && read(fd, text, 8) == 4 && read(fd, text, 8) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(close(fd) == 0 && close(listening) == 0);
	child = vfork();
	if (child == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void files(void)
{
	int ends[2];
	char name[] = "/tmp/plain-kernel-XXXXXX", text[32] = {0};
	int file = mkstemp(name);
	off_t offset = 4;
	FILE *stream;

	CHECK(file >= 0 && unlink(name) == 0 && write(file, "0123456789", 10) == 10);
	pair(ends);
	CHECK(sendfile(ends[0], file, &offset, 100) == 6 && offset == 10);
	CHECK(recv(ends[1], text, 6, MSG_WAITALL) == 6 && !memcmp(text, "456789", 6));
	CHECK(lseek(file, 0, SEEK_CUR) == 10 && lseek(file, 2, SEEK_SET) == 2);
	CHECK(sendfile(ends[0], file, NULL, 3) == 3 && lseek(file, 0, SEEK_CUR) == 5);
	CHECK(recv(ends[1], text, 3, MSG_WAITALL) == 3 && !memcmp(text, "234", 3));
	stream = fdopen(ends[1], "r+");
	CHECK(stream && fileno(stream) == ends[1]);
	CHECK(write(ends[0], "a line\n", 7) == 7 && fgets(text, 32, stream) && !strcmp(text, "a line\n"));
	CHECK(fprintf(stream, "%d\n", 42) == 3 && fflush(stream) == 0 && read(ends[0], text, 32) == 3);
	CHECK(fclose(stream) == 0 && read(ends[0], text, 32) == 0);
	CHECK(close(ends[0]) == 0 && close(file) == 0);
}

static void *blocked(void *fd)
{
	char byte;

	return (void *)(long)read(*(int *)fd, &byte, 1);
}

static void threads(void)
{
	int ends[2];
	pthread_t thread;
	void *result;

	pair(ends);
	CHECK(pthread_create(&thread, NULL, blocked, &ends[0]) == 0);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void broken_pipe(void)
{
	int ends[2], status;
	char byte;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		pair(ends);
		CHECK(shutdown(ends[0], SHUT_WR) == 0);
		CHECK(send(ends[0], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
		CHECK(read(ends[1], &byte, 1) == 0);
		write(ends[0], "x", 1);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

int main(int argc, char **argv)
{
	stream_calls();
	waits();
	nonblocking();
	copies();
	forks();
	files();
	/* An engine's blocking calls are no points of cancellation. */
	if (argc < 2 || strcmp(argv[1], "no-cancel"))
		threads();
	broken_pipe();
	/* stdout is not ours to disturb, and no descriptor has leaked into the low numbers. */
	CHECK(dup(0) == 3);
	puts("the same");
	return 0;
}
