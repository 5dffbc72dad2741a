/* A library that connects, sends and receives, for a program that loads it with RTLD_DEEPBIND, as PHP does its
 * extensions. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* 0: the peer's echo came back. */
int talk(int port)
{
	struct sockaddr_in remote = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char byte = 'x';

	if (connect(fd, (struct sockaddr *)&remote, sizeof(remote)) != 0 || write(fd, &byte, 1) != 1)
		return 1;
	byte = 0;
	if (read(fd, &byte, 1) != 1 || byte != 'x')
		return 2;
	return close(fd);
}
